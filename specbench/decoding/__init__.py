"""The decode loop and its parts: drafters, verification rules and vocabulary bridges."""
