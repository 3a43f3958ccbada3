package apicheck

func (c *collector) references(og origin, o object) {}
