package metrics

import (
	"time"

	"github.com/shivad/shivad/scheduler"
)

// Hooks returns the scheduler's hooks that count batches and drops. ModelChanged is nil: the routes
// set it.
func (m *Metrics) Hooks() scheduler.Hooks {
	return scheduler.Hooks{
		Answered: func(r *scheduler.Request, o scheduler.Outcome) {
			if o != scheduler.OutcomeOK { // OK is counted by the door
				m.of(r.Model).drops[o].Add(1)
			}
		},
		BatchClosed: func(id scheduler.ModelID, rows int, reason scheduler.CloseReason, _ time.Duration) {
			model := m.Model(id.Name, id.Version)
			model.batchRows.observe(int64(rows), lowestRows)
			model.closed[reason].Add(1)
			model.sent.add(rows, reason)
		},
		BatchDone: func(id scheduler.ModelID, rows int, exec, predicted time.Duration, err error) {
			model := m.Model(id.Name, id.Version)
			if err != nil {
				model.failures.Add(1)
				return
			}
			model.execution.observeDuration(exec)
			model.totals.batch(rows, exec)
			if predicted > 0 {
				model.predicted.observeDuration(predicted)
				if exec > predicted {
					model.surprises.Add(1)
				}
			}
		},
		RowsWasted: func(id scheduler.ModelID, rows int) {
			m.Model(id.Name, id.Version).wasted.Add(uint64(rows))
		},
	}
}

// of returns the counts of a model of the scheduler; nil stands for a request to no model.
func (m *Metrics) of(model *scheduler.Model) *Model {
	if model == nil {
		return m.Unrouted()
	}
	id := model.ID()
	return m.Model(id.Name, id.Version)
}
