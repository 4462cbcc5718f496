package api

import _ "embed"

// OpenAPI is the contract of the controller's HTTP interface, openapi.yaml. It is made from what
// internal/wire/httpapi routes.
//
//go:embed openapi.yaml
var OpenAPI []byte
