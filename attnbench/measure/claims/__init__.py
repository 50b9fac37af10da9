"""What sentences about attention rest on, measured: one subject a file. In: plain data of
``reports/published/claims.toml``. Out: numbers by name, which ``analysis/claims.py`` judges.
"""
