"""HoVer: claims over several pages of an encyclopedia."""
