"""PyFlink's tools, as far as programs use them."""
