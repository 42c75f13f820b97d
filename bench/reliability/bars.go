package main

import "regexp"

// logged is what a test says by t.Logf and t.Errorf.
var logged = regexp.MustCompile(`(?m)^ +\w+_test\.go:\d+: (.*)$`)

// test is a test, or several by a regular expression, of some packages.
func test(name string, packages ...string) piece {
	return piece{append([]string{"go", "test", "-count=1", "-vet=off", "-v", "-run", "^(" + name + ")$"}, packages...)}
}

// e2e is a test of real processes.
func e2e(name string) piece {
	return piece{[]string{"go", "test", "-count=1", "-vet=off", "-tags", "e2e", "-v", "-run", "^(" + name + ")$", "./server/e2e"}}
}

// bars are the promises, and what measures each. The others take longer, or a quiet machine: see
// bench/README.md.
var bars = []bar{
	{"R2", "1,000 dials with 256 descriptors: those inside are served, others told, places free again within 1 s",
		[]piece{e2e("TestE2EDescriptorsRunOut")},
		&fault{"server/descriptors.go", "s.tcp = min(wanted.tcp, free-s.rest-s.grpc-s.containers-s.regions)", "s.tcp = wanted.tcp"}},
	{"R4", "1,000 announcements of the largest message hold at most 32 MiB",
		[]piece{test("TestLies", "./shiva"), test("TestLengthLies", "./server/tcp")},
		nil},
	{"R5", "clients that read no answers are closed, and take what each may have",
		[]piece{e2e("TestE2EUnreadAnswers")},
		nil},
	{"R6", "messages that do not arrive end at their timeouts, and nobody waits for them",
		[]piece{test("TestSlowClients", "./server/rest"), test("TestSlowMessage", "./server/grpc"), test("TestManySlowTLSClients", "./server/tcp")}, nil},
	{"R7", "three times the budget: at most 1.25 of it resident, the rest Overloaded, in a cgroup, too",
		[]piece{e2e("TestE2EMemoryBudget|TestE2EMemoryOfCgroup")},
		nil},
	{"R8", "a container is killed each second: all answered, none wrong, at least 99 % with a result",
		[]piece{e2e("TestE2EKilledUnderLoad")},
		&fault{"scheduler/core.go", "func (c *core) requeue(s span, now int64) {\n", "func (c *core) requeue(s span, now int64) {\n\tif s.retried {\n\t\treturn\n\t}\n"}},
	{"R9", "a container is stopped each second: suspected after its timeout, all answered in time",
		[]piece{e2e("TestE2EStoppedUnderLoad")},
		&fault{"scheduler/suspect.go", "b.overdue(int64(c.cfg.ExecTimeout)) > now {", "b.overdue(int64(c.cfg.ExecTimeout)) > 0 {"}},
	{"R12", "SIGTERM under load: all answered, exit 0, the port free at once",
		[]piece{e2e("TestE2EDrainUnderLoad")}, nil},
	{"R17", "who lacks a right is refused on every door, and told no names; no page of another origin is served",
		[]piece{test("TestRightsOnEveryDoor|TestHiddenNames|TestRevocation|TestCertificates|TestContainersShowTokens", "./server"), test("TestOrigins", "./server/rest")},
		&fault{"server/internal/identity/identity.go", "func (i *Identity) May(r Right, name string) bool {\n\tif i == nil {", "func (i *Identity) May(r Right, name string) bool {\n\tif i == nil || r >= 0 {"}},
	{"R18", "from random beliefs, kinds of containers and faults: at least 0.95 of the oracle's goodput within 5 s",
		[]piece{test("TestNoAbsorbingState", "./scheduler")}, nil},
	{"R19", "state that cannot be opened: exit 1, and why, and what to do",
		[]piece{test("TestStateThatCannotBeOpened", "./cmd/shivad"), test("TestOpenSaysWhatIsWrong", "./server/state")},
		&fault{"server/state/remedy.go", `return "make its directory first, or correct state.at"`, `return "see the documentation"`}},
	{"R20", "/livez within 100 ms beside 500 connections that are held",
		[]piece{e2e("TestE2ELivezUnderSiege")},
		&fault{"server/admin/crowd.go", "\tout := b.yieldLocked()\n", "\tfor len(b.held) >= maxConnections {\n\t\tb.mu.Unlock()\n\t\ttime.Sleep(time.Millisecond)\n\t\tb.mu.Lock()\n\t}\n\tout := b.yieldLocked()\n"}},
}
