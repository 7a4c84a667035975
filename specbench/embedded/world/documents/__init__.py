"""Articles, meetings, stories and contracts, with their summaries and questions."""
