"""Reports for people and for parsers, made from run directories: leaves, which nothing measures through."""
