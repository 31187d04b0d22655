"""One file a plug-in; each registers itself when the folder is first asked for a name."""
