"""Command line."""


def main() -> None: ...
