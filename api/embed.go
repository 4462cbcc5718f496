// Package api is the wires of vigil for everybody: the generated code of heart_beat.proto and
// vigil.proto, and the contract of the HTTP interface.
package api

import _ "embed"

// OpenAPI is the contract of the controller's HTTP interface, openapi.yaml. It is made from what
// internal/wire/httpapi routes.
//
//go:embed openapi.yaml
var OpenAPI []byte
