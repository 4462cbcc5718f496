// Package vigil holds the rules of the house, as tests: imports go down, what judges is pure, every
// package is explained, what the documents say is true. The program is in cmd/controller; start
// reading at docs/ARCHITECTURE.md.
package vigil
