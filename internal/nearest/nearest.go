// Package nearest finds what somebody probably meant: the known word that a mistyped one is nearest
// to. Every "did you mean" of vigil comes from here.
package nearest

// Word returns the known word nearest to s, or "" where none is near: within one slip (a letter too
// many, too few, wrong, or two swapped) for words of up to four bytes, two for up to eight, three
// beyond. Of equally near words the first is returned.
func Word(s string, known []string) string {
	best, word := allowed(s)+1, ""
	for _, k := range known {
		if d := distance(s, k, best); d < best {
			best, word = d, k
		}
	}
	return word
}

func allowed(s string) int {
	switch n := len(s); {
	case n <= 4:
		return 1
	case n <= 8:
		return 2
	default:
		return 3
	}
}

// distance is the optimal string alignment distance of a and b, or limit where it is no less.
// Source: Boytsov, "Indexing methods for approximate dictionary searching", 2011, section 2.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			d := last[j]
			if a[i] != b[j] {
				d++
			}
			d = min(d, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, before[j-1]+1)
			}
			row[j+1] = d
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], limit)
}
