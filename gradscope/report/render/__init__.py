"""Rendering: documents as text for a terminal or a pipe, as Markdown, JSON, CSV or graphs."""
