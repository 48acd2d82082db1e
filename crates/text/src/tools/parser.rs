//! Calls and reasoning in what a model writes, while it writes.
//!
//! ```text
//! Opening ─<think>─► Reasoning ─</think>─┐
//!    └──────────── else ─────────────────┴─► Start ── { or [ ──► Call ─certain, then } ─► AfterCall
//!                                              │                 ▲  │                      │   │
//!                                            else          JSON ─┘  └─ no call ─► Text     │   └─ next call ─► Call
//!                                              ▼            │                              │
//!                                             Text ─marker─► Marker ─ no call ─► Text      └─ else ─► Text
//! ```
//!
//! Every character is decided on by itself and goes one way whatever came in the same push, so the
//! pieces do not depend on how the text was cut. What is undecided is in `held`; once it is known to
//! be no call, its first character is text and the rest is read again. White space around calls is
//! markup, too: it is text only beside text.

use super::ToolFormat;
use super::expected::{Expected, Next};
use super::markers::{Marker, MarkerKind, markers};
use super::object::{CallObject, Rules, Step};
use super::piece::{END_THINK, ParserOptions, Piece, ReasoningMode, THINK};

/// Bytes of white space that are held back while it is not clear what they belong to: each further
/// character looks at all of them.
const MAX_HELD_SPACE: usize = 256;

/// Where the parser is in the answer.
#[derive(Debug)]
enum ParserState {
    /// White space, and perhaps `<think>`.
    Opening,
    /// `held` may end the reasoning.
    Reasoning,
    /// Nothing but white space so far: JSON alone may follow.
    Start,
    /// `held` may begin a marker.
    Text,
    /// After a marker's opening; `held` has it.
    Marker(Expected),
    /// In the object of a call; `held` has what is not yet reported.
    Call(CallObject),
    /// After a call; `held` may be what stands between calls or after them.
    AfterCall,
}

/// Splits an answer into text, reasoning and calls as it comes.
#[derive(Debug)]
pub struct OutputParser {
    options: ParserOptions,
    format: ToolFormat,
    state: ParserState,
    held: String,
    /// Characters to be read, the next one last.
    queue: Vec<char>,
    pieces: Vec<Piece>,
    /// The marker around the present calls.
    marker: Option<&'static Marker>,
    in_list: bool,
    /// The last call had doubled braces.
    doubled: bool,
    /// Inside a fence that holds no call: the next fence closes it.
    in_fence: bool,
    calls: usize,
    /// White space that is text only if text follows it.
    gap: Option<String>,
    reasoned: bool,
    /// Text has been reported.
    has_text: bool,
}

impl OutputParser {
    /// A parser for one answer.
    pub fn new(format: ToolFormat, options: ParserOptions) -> OutputParser {
        let state = match options.reasoning {
            _ if options.only_calls => ParserState::Start,
            ReasoningMode::Off => ParserState::Start,
            ReasoningMode::Tagged => ParserState::Opening,
            ReasoningMode::Open => ParserState::Reasoning,
        };
        OutputParser {
            options,
            format,
            state,
            held: String::new(),
            queue: Vec::new(),
            pieces: Vec::new(),
            marker: None,
            in_list: false,
            doubled: false,
            in_fence: false,
            calls: 0,
            gap: Some(String::new()),
            reasoned: false,
            has_text: false,
        }
    }

    /// Takes the next part of the answer and returns what is decided.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.queue.extend(text.chars().rev());
        while let Some(character) = self.queue.pop() {
            self.step(character);
        }
        std::mem::take(&mut self.pieces)
    }

    /// The answer has ended: returns what was held back.
    pub fn finish(mut self) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        match &self.state {
            ParserState::Reasoning => held.chars().for_each(|character| self.think(character)),
            ParserState::Call(object) if object.has_begun() => self.end_call(),
            // An unfinished closing marker.
            ParserState::AfterCall => {}
            _ => held.chars().for_each(|character| self.text(character)),
        }
        if self.calls == 0
            && let Some(gap) = self.gap.take()
        {
            gap.chars().for_each(|character| self.text(character));
        }
        self.pieces
    }

    fn step(&mut self, character: char) {
        match &mut self.state {
            ParserState::Opening => self.opening(character),
            ParserState::Reasoning => self.reasoning(character),
            ParserState::Start => self.start(character),
            ParserState::Text => self.scan(character),
            ParserState::Marker(_) => self.after_marker(character),
            ParserState::Call(_) => self.call(character),
            ParserState::AfterCall => self.after_call(character),
        }
    }

    fn opening(&mut self, character: char) {
        self.held.push(character);
        let word = self.held.trim_start();
        if word == THINK {
            self.held.clear();
            self.state = ParserState::Reasoning;
        } else if !THINK.starts_with(word) || self.held.len() > MAX_HELD_SPACE {
            self.state = ParserState::Start;
            self.requeue();
        }
    }

    fn reasoning(&mut self, character: char) {
        self.held.push(character);
        while !END_THINK.starts_with(self.held.trim_start()) || self.held.len() > MAX_HELD_SPACE {
            let first = self.held.remove(0);
            self.think(first);
        }
        if self.held.trim_start() == END_THINK {
            self.held.clear();
            // White space between reasoning and answer belongs to neither.
            self.gap = None;
            self.state = ParserState::Start;
        }
    }

    fn think(&mut self, character: char) {
        if !self.reasoned && character.is_whitespace() {
            return;
        }
        self.reasoned = true;
        if let Some(Piece::Reasoning(text)) = self.pieces.last_mut() {
            text.push(character);
        } else {
            self.pieces.push(Piece::Reasoning(character.into()));
        }
    }

    fn start(&mut self, character: char) {
        if character.is_whitespace() {
            if let Some(gap) = &mut self.gap {
                gap.push(character);
            }
            return;
        }
        let bare = self.format != ToolFormat::Mistral && matches!(character, '{' | '[');
        if bare && !self.options.json_answer && self.may_call() {
            self.state = ParserState::Marker(Expected::Json);
            self.after_marker(character);
        } else {
            self.state = ParserState::Text;
            self.scan(character);
        }
    }

    fn scan(&mut self, character: char) {
        self.held.push(character);
        if !self.may_call() {
            return self.release(self.held.chars().count());
        }
        while !self.held.is_empty() {
            let open = markers(self.format).iter().find(|it| it.open.starts_with(&self.held));
            match open {
                Some(marker) if marker.open == self.held => {
                    if marker.kind == MarkerKind::Fence && self.in_fence {
                        self.in_fence = false;
                        self.release(marker.open.len());
                        return;
                    }
                    self.marker = Some(marker);
                    self.state = ParserState::Marker(match marker.kind {
                        MarkerKind::Fence => Expected::FenceWord(String::new()),
                        MarkerKind::Tag | MarkerKind::Named => Expected::Json,
                    });
                    return;
                }
                Some(_) => return,
                None => self.release(1),
            }
        }
    }

    fn after_marker(&mut self, character: char) {
        let ParserState::Marker(expected) = std::mem::replace(&mut self.state, ParserState::Text)
        else {
            return;
        };
        let named = self.marker.is_some_and(|marker| marker.kind == MarkerKind::Named);
        match expected.next(character, named && !self.in_list) {
            Next::Call(object) => {
                self.state = ParserState::Call(object);
                self.call(character);
            }
            Next::List if self.in_list => {
                self.held.push(character);
                self.give_up();
            }
            Next::List => {
                self.in_list = true;
                self.held.push(character);
                self.state = ParserState::Marker(Expected::Json);
            }
            Next::Expect(expected) => {
                self.held.push(character);
                self.state = ParserState::Marker(expected);
            }
            Next::NoCall => {
                self.held.push(character);
                self.give_up();
            }
        }
    }

    fn call(&mut self, character: char) {
        let ParserState::Call(object) = &mut self.state else { return };
        let unmarked = self.marker.is_none_or(|marker| marker.kind == MarkerKind::Fence);
        let tagged = self.marker.is_some_and(|marker| marker.close.starts_with('<'));
        let names = unmarked.then_some(self.options.tools.as_slice());
        let step = object.feed(character, Rules { names, tagged });
        let (closed, begun) = (object.is_closed(), object.has_begun());
        self.doubled = object.is_doubled();
        match step {
            Step::Hold => self.held.push(character),
            Step::Begin { name, arguments } => {
                self.held.clear();
                self.calls += 1;
                self.gap = Some(String::new());
                self.pieces.push(Piece::CallStart { name });
                self.pieces.push(Piece::CallArguments(arguments));
            }
            Step::Argument => match self.pieces.last_mut() {
                Some(Piece::CallArguments(text)) => text.push(character),
                _ => self.pieces.push(Piece::CallArguments(character.into())),
            },
            Step::Reject if begun => {
                self.held.push(character);
                self.end_call();
                self.requeue();
                return;
            }
            Step::Reject => {
                self.held.push(character);
                return self.give_up();
            }
        }
        if closed {
            self.held.clear();
            self.end_call();
        }
    }

    fn end_call(&mut self) {
        self.pieces.push(Piece::CallEnd);
        self.state = ParserState::AfterCall;
    }

    fn after_call(&mut self, character: char) {
        let close = self.marker.map_or("", |marker| marker.close);
        if self.held.len() > MAX_HELD_SPACE && self.held.trim_start().is_empty() {
            self.held.clear();
        }
        let before = self.held.trim_start();
        let between = matches!(before.trim_end(), "" | "," | ";");
        self.held.push(character);
        let word = self.held.trim_start();
        if character == ']' && self.in_list && word == "]" {
            self.in_list = false;
            self.held.clear();
        } else if self.doubled && word == "}" {
            self.held.clear();
        } else if !word.is_empty() && word == close {
            self.held.clear();
            self.leave_marker();
        } else if character == '{' && between && self.may_call() {
            self.held.pop();
            self.state = ParserState::Call(CallObject::new());
            self.call(character);
        } else {
            let separates = matches!(word, "," | ";") && self.may_call();
            let space = between && character.is_whitespace();
            if !(space || separates || close.starts_with(word)) {
                self.leave_marker();
                self.requeue();
            }
        }
    }

    /// What is held is no call: its first character, or its fence, is text; the rest is read again.
    fn give_up(&mut self) {
        let fenced = self.marker.filter(|marker| marker.kind == MarkerKind::Fence);
        // After a call in the same block, what is held does not begin with the fence.
        let opening = fenced.filter(|marker| self.held.starts_with(marker.open));
        self.in_fence |= opening.is_some();
        self.leave_marker();
        self.release(opening.map_or(1, |marker| marker.open.len()));
        self.requeue();
    }

    /// The first characters held are text.
    fn release(&mut self, characters: usize) {
        for _ in 0..characters {
            let first = self.held.remove(0);
            self.text(first);
        }
    }

    fn leave_marker(&mut self) {
        self.marker = None;
        self.in_list = false;
        self.state = ParserState::Text;
    }

    fn requeue(&mut self) {
        self.queue.extend(self.held.chars().rev());
        self.held.clear();
    }

    fn may_call(&self) -> bool {
        let in_json = self.options.json_answer && self.has_text;
        let more = self.calls == 0 || self.options.parallel_calls;
        !self.options.tools.is_empty() && more && !in_json
    }

    fn text(&mut self, character: char) {
        if self.options.only_calls {
            return;
        }
        if let Some(gap) = &mut self.gap {
            if character.is_whitespace() {
                gap.push(character);
                return;
            }
            let gap = std::mem::take(gap);
            self.gap = None;
            self.append(&gap);
        }
        self.append(character.encode_utf8(&mut [0; 4]));
    }

    fn append(&mut self, more: &str) {
        self.has_text |= !more.is_empty();
        match self.pieces.last_mut() {
            _ if more.is_empty() => {}
            Some(Piece::Text(text)) => text.push_str(more),
            _ => self.pieces.push(Piece::Text(more.to_owned())),
        }
    }
}
