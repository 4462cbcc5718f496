package main

import (
	"bytes"
	"fmt"
	"math"
)

// Sizes of the picture, in pixels.
const (
	plotWidth, plotLeft, plotRight = 860, 190, 90
	barHeight, barGap, groupGap    = 16, 4, 34
	leastShown                     = 10.0 // ms, where the logarithmic axis begins
)

var barColours = map[string]string{warmName: "#1b7837", coldName: "#7fbf7b", idealName: "#bdbdbd", defaultName: "#fdae61", rightName: "#d7642c"}

// picture draws the medians as bars over a logarithmic axis: who came back at all is beside each.
func (b *bench) picture() []byte {
	var body bytes.Buffer
	most := leastShown * 10
	for _, s := range b.samples {
		most = max(most, milliseconds(int64(s.Took)))
	}
	width := func(ms float64) float64 {
		return max(1, math.Log(ms/leastShown)/math.Log(most/leastShown)*(plotWidth-plotLeft-plotRight))
	}
	y := 46
	for _, fault := range faultNames {
		begun := false
		for _, r := range rivals() {
			all, took := b.of(r.name, fault)
			if len(all) == 0 {
				continue
			}
			if !begun {
				fmt.Fprintf(&body, `<text x="10" y="%d" font-weight="bold">%s</text>`+"\n", y-6, fault)
				begun = true
			}
			fmt.Fprintf(&body, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", plotLeft-8, y+12, r.name)
			at, said := float64(plotLeft), fmt.Sprintf("not within %s", faults[fault].limit)
			if len(took) > 0 {
				w := width(took.At(0.5))
				fmt.Fprintf(&body, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", plotLeft, y, w, barHeight, barColours[r.name])
				at, said = at+w, duration(took.At(0.5))
			}
			if len(took) > 0 && len(took) < len(all) {
				said += fmt.Sprintf(" (%d of %d)", len(took), len(all))
			}
			fmt.Fprintf(&body, `<text x="%.1f" y="%d">%s</text>`+"\n", at+5, y+12, said)
			y += barHeight + barGap
		}
		if begun {
			y += groupGap
		}
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, y)
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, y)
	fmt.Fprintf(&out, `<text x="10" y="18">From the fault to the next training step of every rank: median, logarithmic. PyTorch %s, %d ranks, gloo.</text>`+"\n", b.torch, ranks)
	out.Write(body.Bytes())
	out.WriteString("</svg>\n")
	return out.Bytes()
}

// duration says milliseconds as people do.
func duration(ms float64) string {
	if ms < 1000 {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f s", ms/1000)
}
