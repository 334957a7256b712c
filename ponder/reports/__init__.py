"""From stored results to values, findings, tables, figures and pages."""
