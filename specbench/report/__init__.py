"""Reports: tables, captions, ranking, plots and exports of rows."""
