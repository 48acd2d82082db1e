// Names of TeX and the characters that they stand for.

/** Letters: set in italics like a variable. */
export const LETTERS: Record<string, string> = table(`
  alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ
  mu μ nu ν xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ
  omega ω ell ℓ hbar ℏ imath ı jmath ȷ`);

/** Characters that stand upright. */
export const UPRIGHT: Record<string, string> = table(`
  Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω infty ∞ partial ∂ nabla ∇
  emptyset ∅ varnothing ∅ aleph ℵ Re ℜ Im ℑ wp ℘ forall ∀ exists ∃ nexists ∄ top ⊤ bot ⊥ angle ∠ triangle △
  square □ blacksquare ■ Box □ prime ′ degree ° dots … ldots … cdots ⋯ vdots ⋮ ddots ⋱ dotsc … dotsb ⋯ checkmark ✓
  clubsuit ♣ diamondsuit ♢ heartsuit ♡ spadesuit ♠ copyright © pounds £ dag † ddag ‡ S § P ¶`);

/** Operators and relations. */
export const OPERATORS: Record<string, string> = table(`
  times × div ÷ cdot ⋅ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙ dagger †
  cap ∩ cup ∪ uplus ⊎ sqcap ⊓ sqcup ⊔ setminus ∖ wedge ∧ land ∧ vee ∨ lor ∨ neg ¬ lnot ¬ wr ≀ amalg ⨿ diamond ⋄
  leq ≤ le ≤ geq ≥ ge ≥ leqslant ⩽ geqslant ⩾ ll ≪ gg ≫ neq ≠ ne ≠ equiv ≡ approx ≈ sim ∼ simeq ≃ cong ≅ propto ∝
  asymp ≍ doteq ≐ prec ≺ succ ≻ preceq ⪯ succeq ⪰ lesssim ≲ gtrsim ≳ triangleq ≜ coloneqq ≔
  subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ subsetneq ⊊ supsetneq ⊋ in ∈ notin ∉ ni ∋ mid ∣ nmid ∤ parallel ∥ perp ⟂
  vdash ⊢ dashv ⊣ models ⊨ vDash ⊨ bowtie ⋈ therefore ∴ because ∵ colon :
  to → rightarrow → leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ implies ⟹ Leftarrow ⇐ impliedby ⟸
  Leftrightarrow ⇔ iff ⟺ longrightarrow ⟶ longleftarrow ⟵ Longrightarrow ⟹ Longleftrightarrow ⟺ mapsto ↦ longmapsto ⟼
  uparrow ↑ downarrow ↓ Uparrow ⇑ Downarrow ⇓ updownarrow ↕ nearrow ↗ searrow ↘ swarrow ↙ nwarrow ↖ hookrightarrow ↪
  hookleftarrow ↩ rightharpoonup ⇀ rightleftharpoons ⇌ rightsquigarrow ⇝`);

/** Operators whose limits stand below and above in a displayed formula. */
export const LARGE: Record<string, string> = table(`
  sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigvee ⋁ bigwedge ⋀ bigoplus ⨁ bigotimes ⨂ bigodot ⨀ bigsqcup ⨆`);

/** Integrals: their limits stay beside them. */
export const INTEGRALS: Record<string, string> = table(`int ∫ iint ∬ iiint ∭ oint ∮`);

/** Functions set upright under their own name. */
export const FUNCTIONS = words(`
  arccos arcsin arctan arg cos cosh cot coth csc deg dim exp hom ker lg ln log sec sin sinh tan tanh`);

/** Functions whose subscript stands below in a displayed formula. */
export const LIMITS = words(`lim limsup liminf max min sup inf det gcd Pr argmax argmin`);

export const DELIMITERS: Record<string, string> = {
  ...table(`langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lvert | rvert | vert | lVert ‖ rVert ‖ Vert ‖ | ‖
    lbrace { rbrace } { { } } lbrack [ rbrack ] lgroup ⟮ rgroup ⟯ backslash \\ uparrow ↑ downarrow ↓`),
  ".": "",
};

/** Accents, as characters above. */
export const ACCENTS: Record<string, string> = table(`
  hat ^ widehat ^ tilde ~ widetilde ~ bar ¯ overline ¯ vec → overrightarrow → overleftarrow ← dot ˙ ddot ¨ dddot ⃛
  check ˇ breve ˘ acute ´ grave \` mathring ˚ overbrace ⏞`);

export const BELOW: Record<string, string> = table(`underline _ underbrace ⏟`);

/** Spaces, in em. */
export const SPACES: Record<string, number> = {
  ",": 0.17, ":": 0.22, ">": 0.22, ";": 0.28, "!": -0.17, " ": 0.25, "~": 0.25, quad: 1, qquad: 2, thinspace: 0.17, enspace: 0.5,
};

/** Alphabets: the character that stands for A, for a, and exceptions that Unicode had before. */
export const ALPHABETS: Record<string, { capital: number; small: number; digit?: number; exceptions?: Record<string, string> }> = {
  mathbf: { capital: 0x1d400, small: 0x1d41a, digit: 0x1d7ce },
  boldsymbol: { capital: 0x1d468, small: 0x1d482, digit: 0x1d7ce, exceptions: table(`α 𝜶 β 𝜷 γ 𝜸 δ 𝜹 θ 𝜽 λ 𝝀 μ 𝝁 π 𝝅 σ 𝝈 φ 𝝋 ω 𝝎`) },
  mathbb: { capital: 0x1d538, small: 0x1d552, digit: 0x1d7d8, exceptions: table(`C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ`) },
  mathcal: { capital: 0x1d49c, small: 0x1d4b6, exceptions: table(`B ℬ E ℰ F ℱ H ℋ I ℐ L ℒ M ℳ R ℛ e ℯ g ℊ o ℴ`) },
  mathfrak: { capital: 0x1d504, small: 0x1d51e, exceptions: table(`C ℭ H ℌ I ℑ R ℜ Z ℨ`) },
  mathsf: { capital: 0x1d5a0, small: 0x1d5ba, digit: 0x1d7e2 },
  mathtt: { capital: 0x1d670, small: 0x1d68a, digit: 0x1d7f6 },
};

function words(text: string): Set<string> {
  return new Set(text.trim().split(/\s+/));
}

function table(text: string): Record<string, string> {
  const list = text.trim().split(/\s+/);
  const entries: Record<string, string> = Object.create(null) as Record<string, string>;
  for (let at = 0; at < list.length; at += 2) entries[list[at]!] = list[at + 1]!;
  return entries;
}
