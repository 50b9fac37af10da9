"""Suites (TOML) become cases. In: a suite's name or file, and overrides. Out: a `Suite` of `Case`s."""
