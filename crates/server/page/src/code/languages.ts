// What the languages of code blocks look like, as far as colours need it.

export interface Language {
  /** Signs that begin a comment up to the end of the line. */
  line?: string[];
  /** Pairs of signs around a comment. */
  block?: [string, string][];
  /** Signs around a string; three of them span lines, and so do backticks. */
  strings?: string[];
  keywords?: string;
  /** Upper and lower case mean the same. */
  anyCase?: boolean;
  /** Names before a colon or an equals sign are keys. */
  keys?: boolean;
  /** Tags in angle brackets. */
  tags?: boolean;
  /** Variables that begin with a dollar sign. */
  variables?: boolean;
}

const C_LIKE = { line: ["//"], block: [["/*", "*/"]] as [string, string][], strings: ['"', "'"] };
const C = "auto break case char const continue default do double else enum extern float for goto if inline int long register return short signed sizeof static struct switch typedef union unsigned void volatile while bool true false NULL";
const JAVASCRIPT =
  "as async await break case catch class const continue debugger default delete do else export extends finally for from function get if import in instanceof let new of return set static super switch this throw try typeof var void while with yield true false null undefined";

const LANGUAGES: Record<string, Language> = {
  python: {
    line: ["#"],
    strings: ['"""', "'''", '"', "'"],
    keywords:
      "and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield True False None self",
  },
  javascript: { ...C_LIKE, strings: ["`", '"', "'"], keywords: JAVASCRIPT },
  typescript: {
    ...C_LIKE,
    strings: ["`", '"', "'"],
    keywords: `${JAVASCRIPT} abstract any boolean declare enum implements interface keyof namespace never number private protected public readonly satisfies string type unknown`,
  },
  rust: {
    line: ["//"],
    block: [["/*", "*/"]],
    strings: ['"'],
    keywords:
      "as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait type unsafe use where while true false bool char f32 f64 i8 i16 i32 i64 isize str u8 u16 u32 u64 usize",
  },
  c: { ...C_LIKE, keywords: C },
  cpp: {
    ...C_LIKE,
    keywords: `${C} catch class concept constexpr co_await co_return co_yield decltype delete explicit friend mutable namespace new noexcept nullptr operator override private protected public requires static_cast template this throw try typename using virtual`,
  },
  java: {
    ...C_LIKE,
    keywords:
      "abstract assert boolean break byte case catch char class const continue default do double else enum extends final finally float for if implements import instanceof int interface long native new package private protected public record return sealed short static super switch synchronized this throw throws transient try var void volatile while yield true false null",
  },
  csharp: {
    ...C_LIKE,
    keywords:
      "abstract as async await base bool break byte case catch char class const continue decimal default delegate do double else enum event explicit extern false finally fixed float for foreach get goto if implicit in int interface internal is lock long namespace new null object operator out override params private protected public readonly record ref return sealed set short sizeof static string struct switch this throw true try typeof uint ulong using var virtual void while yield",
  },
  go: {
    ...C_LIKE,
    strings: ["`", '"', "'"],
    keywords:
      "break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var true false nil bool byte error float32 float64 int int32 int64 rune string uint uint8 uint64",
  },
  kotlin: {
    ...C_LIKE,
    strings: ['"""', '"', "'"],
    keywords:
      "abstract as break by catch class companion const constructor continue data do else enum false final finally for fun if import in inline interface internal is lateinit null object open operator override package private protected public return sealed super suspend this throw true try typealias val var vararg when where while",
  },
  swift: {
    ...C_LIKE,
    strings: ['"""', '"'],
    keywords:
      "actor as async await break case catch class continue default defer do else enum extension false fileprivate for func guard if import in init inout internal is let nil open operator private protocol public repeat return self Self static struct subscript super switch throw throws true try typealias var where while",
  },
  php: {
    line: ["//", "#"],
    block: [["/*", "*/"]],
    strings: ['"', "'"],
    variables: true,
    keywords:
      "abstract and array as break case catch class clone const continue declare default do echo else elseif empty enum extends final finally fn for foreach function global if implements include instanceof interface isset list match namespace new null or print private protected public readonly require return static switch this throw trait true false try use var while yield",
  },
  ruby: {
    line: ["#"],
    strings: ['"', "'"],
    keywords:
      "alias and begin break case class def defined do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield require attr_accessor attr_reader puts",
  },
  shell: {
    line: ["#"],
    strings: ['"', "'"],
    variables: true,
    keywords: "case do done elif else esac exit export fi for function if in local readonly return select set shift then trap unset until while echo cd sudo",
  },
  sql: {
    line: ["--"],
    block: [["/*", "*/"]],
    strings: ["'", '"'],
    anyCase: true,
    keywords:
      "add all alter and as asc begin between by case check column commit constraint create cross default delete desc distinct drop else end exists foreign from full group having if in index inner insert into is join key left like limit not null offset on or order outer over partition primary references returning right rollback select set table then true false union unique update using values view when where with",
  },
  json: { strings: ['"'], keys: true, keywords: "true false null" },
  yaml: { line: ["#"], strings: ['"', "'"], keys: true, keywords: "true false null yes no on off" },
  toml: { line: ["#"], strings: ['"""', "'''", '"', "'"], keys: true, keywords: "true false" },
  css: { block: [["/*", "*/"]], strings: ['"', "'"], keys: true },
  html: { block: [["<!--", "-->"]], strings: ['"', "'"], tags: true },
};

const ALIASES: Record<string, string> = {
  py: "python", python3: "python", js: "javascript", jsx: "javascript", mjs: "javascript", node: "javascript", ts: "typescript", tsx: "typescript",
  rs: "rust", h: "c", "c++": "cpp", cc: "cpp", hpp: "cpp", cxx: "cpp", cs: "csharp", "c#": "csharp", golang: "go", kt: "kotlin", rb: "ruby",
  sh: "shell", bash: "shell", zsh: "shell", console: "shell", fish: "shell", dockerfile: "shell", makefile: "shell", yml: "yaml", ini: "toml",
  scss: "css", less: "css", xml: "html", svg: "html", vue: "html", jsonc: "json", json5: "json", postgresql: "sql", mysql: "sql", sqlite: "sql",
};

export function languageOf(name: string): Language | null {
  const lower = name.toLowerCase();
  const known = Object.hasOwn(ALIASES, lower) ? ALIASES[lower]! : lower;
  return Object.hasOwn(LANGUAGES, known) ? LANGUAGES[known]! : null;
}
