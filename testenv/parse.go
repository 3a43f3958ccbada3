package testenv

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
)

// parseMountinfo gives the mount points at and below dir, in the order of /proc/PID/mountinfo (proc(5)).
func parseMountinfo(text, dir string) []string {
	var points []string
	for line := range strings.SplitSeq(text, "\n") {
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		if p := unescapeOctal(f[4]); p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/") {
			points = append(points, p)
		}
	}
	return points
}

// unescapeOctal undoes the kernel's \040 for a blank and the like.
func unescapeOctal(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseRoutes gives the destinations in /proc/net/route other than the default route.
func parseRoutes(text string) []netip.Prefix {
	var out []netip.Prefix
	for line := range strings.SplitSeq(text, "\n") {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		dst, err1 := hex.DecodeString(f[1])
		mask, err2 := hex.DecodeString(f[7])
		if err1 != nil || err2 != nil || len(dst) != 4 || len(mask) != 4 {
			continue
		}
		// Both are in the byte order of the computer, which is little-endian wherever belay runs.
		ones := bits.OnesCount32(binary.BigEndian.Uint32(mask))
		if ones == 0 {
			continue
		}
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{dst[3], dst[2], dst[1], dst[0]}), ones).Masked())
	}
	return out
}
