"""Pictures and pages of results. Reads states and records; runs nothing."""

from calispan.report.diagrams import reliability_diagram, save_figure

__all__ = ["reliability_diagram", "save_figure"]
