"""Run directories in; statistics, figures, event files and films out. Nothing here trains."""
