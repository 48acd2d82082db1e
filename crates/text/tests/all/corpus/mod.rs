//! Texts on which tokenisers tend to differ.

/// The corpus: one text a case.
pub fn corpus() -> Vec<String> {
    let mut texts: Vec<String> = TEXTS.iter().map(|&text| text.to_owned()).collect();
    texts.push(TEXTS.concat());
    texts.push(TEXTS.join(" "));
    texts.push(TEXTS.join("\n\n"));
    // Runs, around the lengths at which vocabularies stop having a token for them.
    for unit in [" ", "\n", "\t", "\r\n", "▁", "a", "=", "-", "0", "é", "哈", "🙂", " \n", "\u{a0}"]
    {
        for length in [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 30, 31, 32, 33, 62, 63, 64, 65, 100, 257] {
            let run = unit.repeat(length);
            texts.push(format!("x{run}y"));
            texts.push(run);
        }
    }
    texts.push("Donaudampfschifffahrtsgesellschaftskapitän".repeat(50));
    texts.push("กรุงเทพมหานครอมรรัตนโกสินทร์".repeat(20));
    texts.push("ACGT".repeat(500));
    texts
}

const TEXTS: &[&str] = &[
    "",
    " ",
    "a",
    "Hello, world!",
    " Hello  world ",
    "The quick brown fox jumps over the lazy dog. It doesn't care; we'll see what they've done.",
    "I'M SURE IT'S FINE, THEY'LL SAY. WE'VE 'em, he'd've, o'clock, rock 'n' roll, dogs' 'S 'sam",
    "it’s a ‘quoted’ “word” — en–dash … ellipsis",
    "Größe, naïve façade, coöperate, Ærøskøbing, Łódź, İstanbul, ĲSSELMEER, ŉ",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΆΈΉΊΌΎΏ ΐΰ",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت ١٢٣٤٥ ۴۵۶",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם עֲלֵיכֶם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश १२३",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "我能吞下玻璃而不伤身体。今天天气真好，１２３，全角！「引号」《书名》",
    "いろはにほへと ちりぬるを。カタカナ、ﾊﾝｶｸ、漢字かな混じり文。々〆ヶー",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 각",
    "தமிழ் മലയാളം తెలుగు ಕನ್ನಡ ગુજરાતી ਪੰਜਾਬੀ සිංහල မြန်မာ ភាសាខ្មែរ ລາວ አማርኛ ქართული Հայերեն ᏣᎳᎩ བོད་སྐད",
    "𝕳𝖊𝖑𝖑𝖔 𝒲𝑜𝓇𝓁𝒹 ｆｕｌｌｗｉｄｔｈ ﬁ ﬂ ſ ẛ ⅷ ② ½ ¼ ² ₃",
    "🙂 😀😃😄 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷🇯🇵 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤️‍🔥 🧑🏿‍🚀 ☃️ ©️ 1️⃣",
    "e\u{301} a\u{308}o\u{308}u\u{308} n\u{303} A\u{30a} \u{212b} \u{1e9b}\u{323} q\u{307}\u{323} \u{1100}\u{1161}\u{11a8} \u{0958} \u{2126}",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "zero\u{200b}width\u{200c}non\u{200d}join\u{2060}er\u{feff}bom \u{ad}soft\u{ad}hyphen",
    "\u{202e}right-to-left\u{202c} \u{2028}line\u{2029}paragraph\u{85}next",
    "nbsp\u{a0}thin\u{2009}ideo\u{3000}em\u{2003}figure\u{2007}ogham\u{1680}end",
    "\0\u{1}\u{2}\u{7}\u{8}\u{b}\u{c}\u{e}\u{1b}[31mred\u{1b}[0m\u{7f}\u{80}\u{9f}",
    "\u{fdd0}\u{fffe}\u{ffff}\u{1fffe}\u{10ffff}\u{fffd}\u{e000}\u{f8ff}\u{f0000}",
    "line\nline\r\nline\rline\n\nline\n\n\nline\r\n\r\nline \n line\t\n\tline   \n   line\n",
    "\ttab\t\ttabs\t\t\tthree    four     five  two\u{a0}\u{a0}x",
    "0 1 12 123 1234 12345 123456 3.14159 -2,718.28 1e-10 0x1F 1_000_000 192.168.0.1 2024-02-29T12:34:56Z",
    "٣٫١٤ Ⅻ 一二三 ௧௨௩ 1st 2nd 3rd x2 h2o 4x4 v1.2.3-rc4 $100 €50 100% #1 @me +49 30 123456",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?`~ !!! ??? ... ---- ==== **** #### //// \\\\\\ <<>> ((())) [[]]",
    "https://example.com/a/b?c=d&e=f#g user.name+tag@example.co.uk C:\\Windows\\System32 /usr/local/bin",
    "fn main() {\n    let x: Vec<u32> = (0..10).map(|i| i * 2).collect();\n    println!(\"{x:?}\");\n}\n",
    "def f(x, *args, **kwargs):\n\t\"\"\"Doc.\"\"\"\n\treturn {k: v for k, v in kwargs.items() if v != 'a'}\n",
    "#include <stdio.h>\nint main(void){for(int i=0;i<10;++i){printf(\"%d\\n\",i);}return 0;}\r\n",
    "<!DOCTYPE html>\n<table><tr><td>a</td></tr></table><b>bold</b> <i>x</i></strong><br/>&nbsp;<h1>T</h1>",
    "SELECT * FROM users WHERE name = 'O''Brien' AND age >= 18 ORDER BY id DESC; -- comment",
    "{\"key\": [1, 2.5, null, true, \"\\u00e9\\n\"], \"nested\": {\"a\": {}}}",
    "\\begin{align} \\int_0^\\infty e^{-x^2} dx = \\frac{\\sqrt{\\pi}}{2} \\end{align} ∀x∈ℝ: ∃y ≤ ∞ ⇒ ∑∏",
    "if (a && b || !c) { return a?.b ?? c?.[0]; } // 日本語コメント\n    /* block */ const λ = x => x ** 2;",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case dot.case fooBAR2Baz iOS McDonald",
    "▁▁ literal ▁mark ▁ ▁▁▁ mixed ▁ ▁  ▁ Ġword Ċ Ġ ġ <0x0A> <0x41>",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><s></s><bos><eos><unk><pad>",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n<unused0><mask>[multimodal]<start_of_image>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|end_of_text|>[INST] x [/INST]",
    "<tool_call>{}</tool_call><|fim_prefix|>a<|fim_suffix|>b<|fim_middle|><|file_sep|><think></think>",
    "<|im_start|><|im_start|> <|im_end|  <|im_start <|im_<|im_end|>start|> <<|im_start|>>",
    "<|IM_START|> < |im_start| > <end_of_turn >",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
    "lollollollollol hahahahahaha nananananana batman ababababababab xyxyxyxyxyxyx",
];
