"""The typed configuration: what can be set, then how presets and overrides become one."""
