package host

import "strings"

// Quote makes one word of s for any POSIX shell, whatever bytes it holds (but NUL, which no argument can hold).
func Quote(s string) string {
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
