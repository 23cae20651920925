"""All that exists because of Faust and aiokafka: the application, its transport, and corrections of both.

No other module imports these libraries (import-linter).
"""
