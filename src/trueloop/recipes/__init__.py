"""Recipes: runs described by Python functions that return a frozen `Recipe`."""
