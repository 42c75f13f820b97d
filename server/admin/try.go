package admin

// Tried is the answer to a Trial.
type Tried struct {
	Model   string        `json:"model"` // that answered
	Version string        `json:"version"`
	Outputs []TriedOutput `json:"outputs"`
	Queue   float64       `json:"queue_seconds"`
	Execute float64       `json:"execute_seconds"`
	Total   float64       `json:"total_seconds"` // spent in the server
	Rows    int           `json:"batch_rows"`    // of the batch that it was in
	// Reported by an application about its answer.
	Confidence *float64          `json:"confidence,omitempty"`
	Default    string            `json:"default_explanation,omitempty"` // why it is the default
	Missing    map[string]string `json:"missing_models,omitempty"`      // each with the reason
}

// A TriedOutput is an output as JSON has it.
type TriedOutput struct {
	Name     string `json:"name"`
	Datatype string `json:"datatype"`
	Shape    []int  `json:"shape"`
	Data     []any  `json:"data"` // its first elements, flat; null for values that JSON lacks
	Elements int    `json:"elements"`
}
