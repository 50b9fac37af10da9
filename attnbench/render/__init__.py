"""Findings become plots, tables, HTML, Markdown and text. Computes nothing: every number comes from
`attnbench.analysis`.
"""
