"""Labelled image sets. A file that registers itself here is a data set."""
