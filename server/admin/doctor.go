package admin

// DefaultFile is where packages put the configuration of the server.
const DefaultFile = "/etc/shivad/shivad.toml"

// A Verdict says what a finding of shivad --doctor means for the server.
type Verdict string

// Verdicts.
const (
	OK    Verdict = "ok"
	Note  Verdict = "note"  // the server works, perhaps not as its operator expects
	Wrong Verdict = "wrong" // it does not start, or does not serve all that is configured
)

// A Finding is the result of a check, or one of several.
type Finding struct {
	Check   string  `json:"check"` // such as "ports"
	Verdict Verdict `json:"verdict"`
	Text    string  `json:"text"`
	Remedy  string  `json:"remedy,omitempty"` // a command, a line of the configuration, or advice
}

// A Diagnosis has all findings about a machine and a configuration, in the order of the checks. It
// is what shivad --doctor prints.
type Diagnosis struct {
	Config   string    `json:"config"` // the file; "": the defaults
	Wrong    int       `json:"wrong"`  // findings that are Wrong
	Findings []Finding `json:"findings"`
}
