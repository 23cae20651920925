"""The runs behind the tables: what is run, under whom, checked, and kept so that none is run twice."""
