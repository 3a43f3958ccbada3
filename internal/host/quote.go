package host

import "strings"

// Quote makes one word of s for any POSIX shell, whatever bytes it holds (but NUL, which no argument can hold).
// A word of letters, digits and harmless marks stays as it is, so that commands are easy to read.
func Quote(s string) string {
	harmful := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("@%+:,./-_", r)
	}
	if s != "" && !strings.ContainsFunc(s, harmful) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// QuoteAll makes the words of argv, separated by blanks.
func QuoteAll(argv []string) string {
	q := make([]string, len(argv))
	for i, a := range argv {
		q[i] = Quote(a)
	}
	return strings.Join(q, " ")
}
