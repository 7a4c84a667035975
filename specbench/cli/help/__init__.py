"""The help of methods, and how help is written."""
