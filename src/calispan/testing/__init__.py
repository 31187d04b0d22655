"""The laws every plug-in meets, public so that plug-ins from outside can be checked too."""
