package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"time"
)

// Sizes of the picture, in pixels.
const (
	plotWidth          = 900
	plotLeft           = 250
	plotRight          = 690 // the verdicts on healthy jobs stand right of it
	plotTop, rowHeight = 96, 48
	dot                = 5
)

// The ends of the logarithmic axis.
const (
	axisFrom = 800 * time.Millisecond
	axisTo   = 3 * time.Hour
)

// ticks are the times that the axis names.
var ticks = []struct {
	at   time.Duration
	name string
}{{time.Second, "1 s"}, {10 * time.Second, "10 s"}, {time.Minute, "1 min"}, {10 * time.Minute, "10 min"}, {time.Hour, "1 h"}}

// style keeps the picture readable on light pages and on dark ones.
const style = `<style>
text{fill:#1f2328;font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:12px}
.h{font-weight:600;font-size:13px}.s{fill:#656d76;font-size:11px}.bad{fill:#cf222e}
.bg{fill:#ffffff}.band{fill:#f6f8fa}.grid{stroke:#d0d7de}.gap{fill:#afb8c1}.fixed{stroke:#cf222e;stroke-dasharray:5 4}.ring{stroke:#ffffff}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#8d96a0}.bad{fill:#ff7b72}.bg{fill:#0d1117}.band{fill:#161b22}.grid{stroke:#30363d}.gap{fill:#484f58}.fixed{stroke:#ff7b72}.ring{stroke:#0d1117}}
</style>
`

// across returns where a time lies on the axis.
func across(d time.Duration) float64 {
	part := math.Log(float64(d)/float64(axisFrom)) / math.Log(float64(axisTo)/float64(axisFrom))
	return plotLeft + min(max(part, 0), 1)*(plotRight-plotLeft)
}

// picture draws a row for each rhythm: how long its words are apart while it is well, when each hang is found, and how
// often a fixed limit would have failed it.
func picture(all []measured) []byte {
	var b bytes.Buffer
	bottom := plotTop + rowHeight*len(all)
	height := bottom + 84
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d">`+"\n", plotWidth, height, plotWidth, height)
	b.WriteString(style)
	fmt.Fprintf(&b, `<rect class="bg" width="%d" height="%d" rx="6"/>`+"\n", plotWidth, height)
	text := func(x float64, y int, class, anchor, said string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, html.EscapeString(said))
	}
	text(16, 24, "h", "start", "Until a hang is found, with vigil's default limits")
	legend(&b, text)
	text(16, plotTop-10, "s", "start", "rhythm of the healthy job")
	text(plotRight+24, plotTop-22, "s", "start", "healthy steps failed by")
	text(plotRight+24, plotTop-8, "s", "start", "vigil")
	text(plotWidth-16, plotTop-8, "s", "end", "120 s, fixed")
	for i := range all {
		if i%2 == 0 {
			fmt.Fprintf(&b, `<rect class="band" x="8" y="%d" width="%d" height="%d" rx="4"/>`+"\n", plotTop+i*rowHeight, plotWidth-16, rowHeight)
		}
	}
	for _, tick := range ticks {
		at := across(tick.at)
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`+"\n", at, at, plotTop, bottom)
		text(at, bottom+16, "s", "middle", tick.name)
	}
	fmt.Fprintf(&b, `<line class="fixed" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`+"\n", across(fixed), across(fixed), plotTop-4, bottom)
	text(across(fixed), plotTop-8, "s bad", "middle", "120 s")
	for i, m := range all {
		m.draw(&b, plotTop+i*rowHeight, text)
	}
	for line, said := range []string{
		"Grey: the time between two steps of the healthy job, from the median to the longest. Dots: the latest of three hangs, made rhythms in fake time.",
		"A fixed limit finds every hang after 120 s, and fails every job whose grey passes the dashed line.",
		"torchrun watches no progress: a hang in a collective ends by PyTorch's timeout (10 min with NCCL, 30 min otherwise), any other never.",
	} {
		text(16, bottom+40+16*line, "s", "start", said)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func legend(b *bytes.Buffer, text func(float64, int, string, string, string)) {
	x := 16.0
	for _, h := range hangs() {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="44" r="%d" fill="%s"/>`+"\n", x+dot, dot, h.colour)
		text(x+2*dot+6, 48, "", "start", h.name)
		x += 2*dot + 30 + 6.6*float64(len(h.name))
	}
}

// draw draws a rhythm's row, whose upper end is at y.
func (m measured) draw(b *bytes.Buffer, y int, text func(float64, int, string, string, string)) {
	text(16, y+20, "", "start", m.rhythm.name)
	text(16, y+35, "s", "start", m.rhythm.brief)
	from, to := across(m.well.typical), across(m.well.longest)
	fmt.Fprintf(b, `<rect class="gap" x="%.1f" y="%d" width="%.1f" height="6" rx="3"/>`+"\n", from-3, y+rowHeight/2-3, max(to-from, 0)+6)
	var taken []float64 // of dots that are drawn
	for _, h := range hangs() {
		found, _ := m.times(h.name)
		if len(found) == 0 {
			continue
		}
		x := across(time.Duration(found.At(1) * float64(time.Millisecond)))
		level := 0 // dots at one place stand above each other
		for _, other := range taken {
			if math.Abs(other-x) < 2*dot {
				level++
			}
		}
		taken = append(taken, x)
		fmt.Fprintf(b, `<circle class="ring" cx="%.1f" cy="%d" r="%d" fill="%s"><title>%s: %s</title></circle>`+"\n", x, y+rowHeight/2+stacked(level), dot, h.colour, html.EscapeString(h.name), short(time.Duration(found.At(1)*float64(time.Millisecond))))
	}
	text(plotRight+24, y+27, "", "start", fmt.Sprint(m.well.verdicts+m.early))
	class := ""
	if m.well.fixed > 0 {
		class = "bad"
	}
	text(plotWidth-16, y+27, class, "end", fmt.Sprintf("%d of %s", m.well.fixed, thousands(m.well.gaps)))
}

// thousands says a number with its thousands apart.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// stacked returns by how much the dot of that number at one place is moved: up and down in turns.
func stacked(n int) int { return []int{0, -8, 8, -16, 16, 0}[min(n, 5)] }
