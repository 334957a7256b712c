"""One factor at a time: study files, their cells, where results are kept and who runs them."""
