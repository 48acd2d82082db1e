// Texts that the stub answers with, by the first word of the message.

const markdown = `# Player pianos

A **player piano** reads a roll of *perforated* paper. Its parts, in short:

1. The **roll**, which moves over the tracker bar
   - one hole for each note
   - wide holes for the *pedals*
2. The \`tracker bar\`, which has 88 openings
3. The pneumatic stack

| Part | Holes | Pressure |
|:-----|------:|:--------:|
| Tracker bar | 88 | low |
| Pedal \`sustain\` | 2 | *high* |

\`\`\`rust
fn play(roll: &Roll) -> Result<(), Jam> {
    for (time, notes) in roll.rows() {
        stack.strike(time, notes)?; // one row at a time
    }
    Ok(())
}
\`\`\`

> The roll is recorded once,
> and played as often as you like.

- [x] wind the spring
- [ ] oil the pedals

---

More in the [history](https://example.org/pianos?a=1&b=2) or at https://example.org/rolls.`;

const maths = String.raw`The roots of \(ax^2 + bx + c = 0\) are

\[
x_{1,2} = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
\]

A sum in a line: $\sum_{i=1}^{n} i = \frac{n(n+1)}{2}$. A matrix and cases:

$$
A = \begin{pmatrix} 1 & 0 \\ 0 & -1 \end{pmatrix}, \qquad
f(x) = \begin{cases} x & \text{if } x > 0 \\ 0 & \text{otherwise} \end{cases}
$$

\begin{align} and $5 are left as they are.`;

const hostile = `<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 2">

[a link](javascript:window.hacked=3) and [another](data:text/html,<script>1</script>) and <javascript:window.hacked=4>

![picture](https://example.org/x.png) ![bad](javascript:window.hacked=5)

\`\`\`"><script>window.hacked = 6</script>
<iframe srcdoc="<script>parent.hacked = 7</script>"></iframe>
\`\`\`

| <b onmouseover="window.hacked=8">x</b> | y |
|---|---|
| <svg onload="window.hacked = 9"> | [z](vbscript:x) |

[ok](https://example.org/")`;

export const ANSWERS = {
  markdown: { answer: markdown },
  maths: { answer: maths },
  hostile: { answer: hostile },
  long: { answer: Array.from({ length: 60 }, (_, index) => `Paragraph ${index + 1} says that the paper roll moves on at an even speed, whatever the notes on it.`).join("\n\n") },
  think: { reasoning: "The question asks for a *number*.\n\nSix times seven is forty-two.", answer: "The answer is **42**." },
  cut: { answer: "This answer will break off before it has come to its end, which the page has to tell." },
};
