"""Programs as text, each from settings that were checked: what a page of the lab shows is what ran."""
