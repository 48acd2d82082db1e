//! The JSON object of one call, read a character at a time.

/// What a character did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It belongs to the object's markup, or it is too early to tell.
    Hold,
    /// It is certain that this is a call: its name, and the arguments so far, this character included.
    Begin { name: String, arguments: String },
    /// It belongs to the arguments of a call that has begun.
    Argument,
    /// It does not fit. Before `Begin` this is no call; after it the call ends before this character.
    Reject,
}

/// What counts as a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// The only names that make a call, where nothing but its shape tells a call from other JSON.
    pub(super) names: Option<&'a [String]>,
    /// Whether `<` outside a string ends the arguments: the closing marker begins with it.
    pub(super) tagged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Open,
    /// Directly after the opening brace; some templates teach models to double it.
    AfterOpen,
    KeyOrEnd,
    Key,
    Colon,
    Value,
    Name,
    /// After the brace of the arguments, before their first key: a brace alone is no arguments yet.
    ArgumentsOpen,
    Arguments,
    Skipped,
    Scalar,
    AfterValue,
    SecondBrace,
    Closed,
}

/// Nesting of a JSON value, by its brackets and strings alone.
#[derive(Clone, Copy, Debug, Default)]
struct Nest {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Nest {
    /// Whether the character closes the value.
    fn closes(&mut self, character: char) -> bool {
        if self.in_string {
            match character {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
        } else {
            match character {
                '"' => self.in_string = true,
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        self.depth == 0 && !self.in_string
    }
}

/// Values inside one another in what may still be no call. It is read again from every marker in
/// it, so that its length would count squared if markers could nest without a bound.
const DEEPEST: usize = 64;

/// The state of reading one object.
#[derive(Debug)]
pub(super) struct CallObject {
    place: Place,
    doubled: bool,
    /// The arguments stand alone, after a name that was written before them.
    alone: bool,
    /// The string being read, escapes and all: a key or the name.
    string: String,
    escaped: bool,
    name: Option<String>,
    /// Those read before the call has begun.
    arguments: Option<String>,
    begun: bool,
    nest: Nest,
}

impl CallObject {
    /// An object with a name and arguments, from its brace on.
    pub(super) fn new() -> CallObject {
        CallObject {
            place: Place::Open,
            doubled: false,
            alone: false,
            string: String::new(),
            escaped: false,
            name: None,
            arguments: None,
            begun: false,
            nest: Nest::default(),
        }
    }

    /// Arguments alone, for a call of this name.
    pub(super) fn named(name: String) -> CallObject {
        CallObject { place: Place::Value, alone: true, name: Some(name), ..CallObject::new() }
    }

    /// Whether the last character completed it.
    pub(super) fn is_closed(&self) -> bool {
        self.place == Place::Closed
    }

    /// Whether its braces are doubled. Models that do so lose count of those at the end.
    pub(super) fn is_doubled(&self) -> bool {
        self.doubled
    }

    /// Whether it turned out to be a call.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Takes the next character.
    pub(super) fn feed(&mut self, character: char, rules: Rules) -> Step {
        let space = matches!(character, ' ' | '\t' | '\n' | '\r');
        match self.place {
            Place::Open => self.expect(character == '{', Place::AfterOpen),
            Place::AfterOpen if character == '{' => {
                self.doubled = true;
                self.go(Place::KeyOrEnd)
            }
            Place::AfterOpen if space => self.go(Place::KeyOrEnd),
            Place::KeyOrEnd | Place::Colon | Place::Value | Place::AfterValue if space => {
                Step::Hold
            }
            Place::AfterOpen | Place::KeyOrEnd => match character {
                '"' => self.open_string(Place::Key),
                '}' => self.close(rules),
                _ => Step::Reject,
            },
            Place::Key => {
                if self.string_ends(character) {
                    self.place = Place::Colon;
                }
                Step::Hold
            }
            Place::Colon => self.expect(character == ':', Place::Value),
            Place::Value => self.value(character),
            Place::Name => self.name(character, rules),
            Place::ArgumentsOpen => self.first_argument(character),
            Place::Arguments => self.argument(character, rules),
            Place::Skipped => {
                if self.nest.closes(character) {
                    self.place = Place::AfterValue;
                }
                self.hold_nested()
            }
            Place::Scalar => match character {
                ',' | '}' => self.after_value(character, rules),
                ']' | '{' | '[' | '"' | '<' => Step::Reject,
                _ if space => self.go(Place::AfterValue),
                _ => Step::Hold,
            },
            Place::AfterValue => self.after_value(character, rules),
            Place::SecondBrace if space => Step::Hold,
            Place::SecondBrace => self.expect(character == '}', Place::Closed),
            Place::Closed => Step::Reject,
        }
    }

    fn go(&mut self, place: Place) -> Step {
        self.place = place;
        Step::Hold
    }

    fn expect(&mut self, fits: bool, place: Place) -> Step {
        if fits { self.go(place) } else { Step::Reject }
    }

    fn open_string(&mut self, place: Place) -> Step {
        self.string.clear();
        self.escaped = false;
        self.go(place)
    }

    /// Reads on in a string; whether this was its closing quote.
    fn string_ends(&mut self, character: char) -> bool {
        if character == '"' && !self.escaped {
            return true;
        }
        self.escaped = character == '\\' && !self.escaped;
        self.string.push(character);
        false
    }

    fn value(&mut self, character: char) -> Step {
        let arguments = self.alone || matches!(self.string.as_str(), "arguments" | "parameters");
        if arguments && self.arguments.is_none() && !self.begun {
            self.nest = Nest::default();
            self.nest.closes(character);
            self.arguments = Some(character.to_string());
            return self.expect(character == '{', Place::ArgumentsOpen);
        }
        if self.string == "name" && self.name.is_none() {
            return if character == '"' { self.open_string(Place::Name) } else { Step::Reject };
        }
        self.nest = Nest::default();
        match character {
            '{' | '[' | '"' => {
                self.nest.closes(character);
                self.go(Place::Skipped)
            }
            ',' | '}' | ']' | '<' => Step::Reject,
            _ => self.go(Place::Scalar),
        }
    }

    fn name(&mut self, character: char, rules: Rules) -> Step {
        if !self.string_ends(character) {
            return Step::Hold;
        }
        let quoted = format!("\"{}\"", self.string);
        let name = serde_json::from_str::<String>(&quoted).unwrap_or_default();
        let known = rules.names.is_none_or(|names| names.contains(&name));
        if name.is_empty() || !known {
            return Step::Reject;
        }
        self.name = Some(name);
        self.place = Place::AfterValue;
        match self.arguments.take() {
            Some(arguments) => self.begin(arguments),
            None => Step::Hold,
        }
    }

    fn begin(&mut self, arguments: String) -> Step {
        self.begun = true;
        // The callers begin a call only once its name is known.
        Step::Begin { name: self.name.clone().unwrap_or_default(), arguments }
    }

    fn first_argument(&mut self, character: char) -> Step {
        if !matches!(character, '"' | '}' | ' ' | '\t' | '\n' | '\r') {
            return Step::Reject;
        }
        let mut arguments = self.arguments.take().unwrap_or_default();
        arguments.push(character);
        let closed = self.nest.closes(character);
        if !matches!(character, '"' | '}') {
            self.arguments = Some(arguments);
            return Step::Hold;
        }
        self.place = match (closed, self.alone) {
            (false, _) => Place::Arguments,
            (true, true) => Place::Closed,
            (true, false) => Place::AfterValue,
        };
        if self.name.is_some() {
            self.begin(arguments)
        } else {
            self.arguments = Some(arguments);
            Step::Hold
        }
    }

    fn argument(&mut self, character: char, rules: Rules) -> Step {
        if character == '<' && rules.tagged && !self.nest.in_string {
            return Step::Reject;
        }
        if self.nest.closes(character) {
            self.place = if self.alone { Place::Closed } else { Place::AfterValue };
        }
        match &mut self.arguments {
            Some(arguments) => {
                arguments.push(character);
                self.hold_nested()
            }
            None => Step::Argument,
        }
    }

    fn hold_nested(&self) -> Step {
        if self.nest.depth > DEEPEST && !self.begun { Step::Reject } else { Step::Hold }
    }

    fn after_value(&mut self, character: char, rules: Rules) -> Step {
        match character {
            ',' => self.go(Place::KeyOrEnd),
            '}' => self.close(rules),
            _ => Step::Reject,
        }
    }

    fn close(&mut self, rules: Rules) -> Step {
        // Without a marker around it, an object that only has a name may be anything.
        if !self.begun && (self.name.is_none() || rules.names.is_some()) {
            return Step::Reject;
        }
        self.place = if self.doubled { Place::SecondBrace } else { Place::Closed };
        if self.begun { Step::Hold } else { self.begin("{}".to_owned()) }
    }
}
