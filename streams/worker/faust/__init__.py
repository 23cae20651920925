"""All code that depends on Faust and aiokafka: the application, its transport, and corrections of both.

No other module imports these libraries (import-linter).
"""
