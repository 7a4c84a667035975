"""One run: plans it, measures it trial by trial into a folder of records, and reports its rows."""
