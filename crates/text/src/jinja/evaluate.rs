//! Runs a program: statements, scopes and output. Expressions are in `expression.rs`, calls in
//! `call.rs`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Map;

use super::ast::{Block, Expression, For, Line, Macro, Statement, Suffix, Target};
use super::budget::{Budget, DEEPEST, LONGEST_OUTPUT, Writer, nesting};
use super::fault::{Fault, Limit};
use super::python;
use super::value::{Closure, Form, Frame, List, LoopState, Value};

/// How a block ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

pub(super) struct Evaluator<'b> {
    pub(super) budget: &'b Budget,
    pub(super) now: SystemTime,
    /// Variables of the whole template.
    pub(super) globals: Frame,
    /// Those of loops, blocks and macros, the innermost last.
    pub(super) frames: Vec<Frame>,
    /// The text, and behind it what is being written for a value.
    outputs: Vec<Writer<'b>>,
    depth: usize,
    line: u32,
}

impl<'b> Evaluator<'b> {
    pub(super) fn new(
        budget: &'b Budget,
        now: SystemTime,
        variables: Map<String, serde_json::Value>,
    ) -> Result<Evaluator<'b>, Fault> {
        let variable = |(name, value): (String, serde_json::Value)| {
            Ok((Arc::from(name), Value::from_json(value, budget)?))
        };
        let globals = variables.into_iter().map(variable).collect::<Result<Frame, Fault>>()?;
        let outputs = vec![Writer::new(budget)];
        Ok(Evaluator { budget, now, globals, frames: Vec::new(), outputs, depth: 0, line: 1 })
    }

    pub(super) fn run(mut self, body: &Block) -> Result<String, Fault> {
        self.block(body).map_err(|fault| fault.at(self.line))?;
        Ok(self.outputs.swap_remove(0).into_string())
    }

    /// Does something one level deeper.
    pub(super) fn deeper<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.depth == DEEPEST {
            return Err(Fault::limit(Limit::Depth));
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    fn block(&mut self, block: &[Line]) -> Result<Flow, Fault> {
        self.deeper(|this| {
            for Line { line, statement } in block {
                this.budget.work(1)?;
                this.line = *line;
                let flow = this.statement(statement)?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
            }
            Ok(Flow::Next)
        })
    }

    fn statement(&mut self, statement: &Statement) -> Result<Flow, Fault> {
        match statement {
            Statement::Text(text) => self.write(text)?,
            Statement::Print(expression) => {
                let value = self.evaluate(expression)?;
                self.print(&value)?;
            }
            Statement::For(definition) => {
                let items = self.evaluate(&definition.items)?;
                self.for_loop(definition, &items, 0)?;
            }
            Statement::If { arms, otherwise } => {
                for (condition, body) in arms {
                    if self.evaluate(condition)?.is_true() {
                        return self.block(body);
                    }
                }
                return self.block(otherwise);
            }
            Statement::Set { target, value } => {
                let value = self.evaluate(value)?;
                self.assign(target, value)?;
            }
            Statement::SetBlock { target, filters, body } => {
                let value = self.captured(filters, body)?;
                self.assign(target, value)?;
            }
            Statement::Macro(definition) => {
                let value = self.closure(definition)?;
                self.store(&definition.name, value);
            }
            Statement::Call { callee, caller } => {
                let value = self.call_block(callee, caller)?;
                self.print(&value)?;
            }
            Statement::Filter { filters, body } => {
                let value = self.captured(filters, body)?;
                self.print(&value)?;
            }
            Statement::With { assignments, body } => return self.with(assignments, body),
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn with(&mut self, assignments: &[(Target, Expression)], body: &[Line]) -> Result<Flow, Fault> {
        let values = assignments.iter().map(|(_, value)| self.evaluate(value));
        let values = values.collect::<Result<Vec<Value>, Fault>>()?;
        self.frames.push(Frame::new());
        let run = || {
            for ((target, _), value) in assignments.iter().zip(values) {
                self.assign(target, value)?;
            }
            self.block(body)
        };
        let flow = run();
        self.frames.pop();
        flow
    }

    /// A loop over some items; `level` counts the recursive ones around it.
    pub(super) fn for_loop(
        &mut self,
        definition: &Arc<For>,
        items: &Value,
        level: usize,
    ) -> Result<(), Fault> {
        let mut items = items.iterate(self.budget)?;
        self.frames.push(Frame::new());
        let done = self.filtered(definition, &mut items).and_then(|()| {
            let state = LoopState {
                definition: definition.clone(),
                items: items.clone(),
                index: Cell::new(0),
                level,
                changed: RefCell::new(None),
            };
            self.budget.memory(size_of::<LoopState>())?;
            self.iterations(&Rc::new(state))
        });
        self.frames.pop();
        if !done? {
            self.frames.push(Frame::new());
            let written = self.block(&definition.otherwise);
            self.frames.pop();
            written?;
        }
        Ok(())
    }

    /// Keeps the items for which the loop's condition holds.
    fn filtered(&mut self, definition: &For, items: &mut Rc<List>) -> Result<(), Fault> {
        let Some(condition) = &definition.condition else { return Ok(()) };
        let mut kept = Vec::new();
        for item in &items.items {
            self.assign(&definition.target, item.clone())?;
            if self.evaluate(condition)?.is_true() {
                self.budget.items(1)?;
                kept.push(item.clone());
            }
        }
        *items = self.budget.sequence(Form::List, kept)?;
        Ok(())
    }

    /// Runs the body for every item. Whether it ran to its end at least once, which is what Jinja
    /// asks before it runs `else`: a body that only ever breaks or continues did not.
    fn iterations(&mut self, state: &Rc<LoopState>) -> Result<bool, Fault> {
        let mut completed = false;
        for (index, item) in state.items.items.iter().enumerate() {
            self.budget.work(1)?;
            state.index.set(index);
            // What an iteration sets ends with it.
            self.frames.pop();
            self.frames.push(Frame::new());
            self.store(&"loop".into(), Value::Loop(state.clone()));
            self.assign(&state.definition.target, item.clone())?;
            match self.block(&state.definition.body)? {
                Flow::Next => completed = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        Ok(completed)
    }

    /// What a block writes, through filters.
    fn captured(&mut self, filters: &[Suffix], body: &[Line]) -> Result<Value, Fault> {
        let mut value = self.capture(Frame::new(), body)?;
        for suffix in filters {
            value = self.suffix(value, suffix)?;
        }
        Ok(value)
    }

    /// What a block writes with these variables.
    pub(super) fn capture(&mut self, frame: Frame, body: &[Line]) -> Result<Value, Fault> {
        self.frames.push(frame);
        let written = self.written(|this| this.block(body).map(drop));
        self.frames.pop();
        written
    }

    /// What is written meanwhile, as a value.
    pub(super) fn written(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(), Fault>,
    ) -> Result<Value, Fault> {
        self.outputs.push(Writer::new(self.budget));
        let done = write(self);
        let output = self.outputs.pop();
        done?;
        output.map_or(Ok(Value::Undefined), Writer::into_value)
    }

    /// A macro with what it sees from here.
    pub(super) fn closure(&mut self, definition: &Arc<Macro>) -> Result<Value, Fault> {
        let variables: usize = self.frames.iter().map(Frame::len).sum();
        self.budget.memory(size_of::<Closure>() + (self.frames.len() + variables) * 64)?;
        let (depth, _) = nesting(self.frames.iter().flat_map(Frame::values))?;
        let frames = self.frames.clone();
        Ok(Value::Macro(Rc::new(Closure { definition: definition.clone(), frames, depth })))
    }

    fn print(&mut self, value: &Value) -> Result<(), Fault> {
        match value {
            Value::Text(text) => self.write(text),
            _ => {
                let mut text = Writer::new(self.budget);
                python::print(value, &mut text)?;
                self.write(&text.into_string())
            }
        }
    }

    fn write(&mut self, text: &str) -> Result<(), Fault> {
        let whole = self.outputs.len() == 1;
        let Some(output) = self.outputs.last_mut() else { return Ok(()) };
        if whole && output.len() + text.len() > LONGEST_OUTPUT {
            return Err(Fault::limit(Limit::Output));
        }
        output.push(text)
    }

    pub(super) fn store(&mut self, name: &Arc<str>, value: Value) {
        let frame = self.frames.last_mut().unwrap_or(&mut self.globals);
        frame.insert(name.clone(), value);
    }

    pub(super) fn variable(&self, name: &str) -> Option<&Value> {
        let local = self.frames.iter().rev().find_map(|frame| frame.get(name));
        local.or_else(|| self.globals.get(name))
    }

    fn assign(&mut self, target: &Target, value: Value) -> Result<(), Fault> {
        match target {
            Target::Name(name) => self.store(name, value),
            Target::Attribute(name, attribute) => {
                let Some(Value::Namespace(space)) = self.variable(name) else {
                    return Err(Fault::failed(format!(
                        "'{name:.40}' is no namespace to set '{attribute:.40}' in"
                    )));
                };
                only_data(&value)?;
                space.borrow_mut().insert(attribute.clone(), value);
            }
            Target::Tuple(targets) => {
                let values = value.iterate(self.budget)?;
                if values.items.len() != targets.len() {
                    let (wanted, found) = (targets.len(), values.items.len());
                    return Err(Fault::failed(format!(
                        "{found} values cannot be assigned to {wanted} names"
                    )));
                }
                for (target, value) in targets.iter().zip(&values.items) {
                    self.assign(target, value.clone())?;
                }
            }
        }
        Ok(())
    }
}

/// A namespace holds nothing else: see [`Value`].
pub(super) fn only_data(value: &Value) -> Result<(), Fault> {
    match value.is_plain() {
        true => Ok(()),
        false => Err(Fault::failed(format!(
            "a namespace holds data only, and {} is or contains something else",
            value.kind()
        ))),
    }
}
