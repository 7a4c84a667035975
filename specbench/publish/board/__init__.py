"""A board repository: others submit bundles, a check reads them, and all rows are made from them."""
