package apicheck

func (c *collector) fast([]byte) bool { return false }
