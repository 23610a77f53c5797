"""Sources and sinks. Users import them by PyFlink's paths from ``tidegate.datastream.connectors``."""
