"""The figures of a comparison, one function each, from runs to a plotly figure in the light scheme.

A figure of a metric is about the runs that have it, by default the metric that the runs lead with; colours are those
of all runs. Text that users wrote goes through `figure_text`, since plotly reads markup in text.
"""
