"""An engine in small, under a request trace, as ``kvbus run`` drives it. Some modules need torch."""
