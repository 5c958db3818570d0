"""A sentence of filler in each language that an IFEval prompt may ask for."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LANGUAGES"]

LANGUAGES: Mapping[str, str] = {
    "en": "this is a quiet day and the reader finds what is needed in this short note",
    "de": "heute ist ein ruhiger Tag und wir schreiben einen kurzen Text über das Leben im Dorf",
    "fr": "nous écrivons aujourd'hui un petit texte sur la vie dans le village avec nos amis",
    "es": "hoy escribimos un texto corto sobre la vida en el pueblo con nuestros buenos amigos",
    "it": "oggi scriviamo un breve testo sulla vita nel paese insieme ai nostri vecchi amici",
    "pt": "hoje nós escrevemos um texto curto sobre a vida na aldeia com os nossos amigos não",
    "ru": "сегодня мы пишем короткий текст о жизни в деревне вместе с нашими друзьями",
    "bg": "днес ние пишем кратък текст за живота в селото заедно с нашите добри приятели",
    "hi": "आज हम गाँव के जीवन के बारे में एक छोटा पाठ लिखते हैं और यह अच्छा है",
    "mr": "आज आम्ही गावातील जीवनाबद्दल एक छोटा मजकूर लिहितो आणि तो चांगला आहे",
    "ne": "आज हामी गाउँको जीवनको बारेमा एउटा छोटो पाठ लेख्छौं र यो राम्रो छ",
    "bn": "আজ আমরা গ্রামের জীবন নিয়ে একটি ছোট লেখা লিখছি এবং এটি ভালো",
    "gu": "આજે અમે ગામના જીવન વિશે એક નાનો લેખ લખીએ છીએ અને તે સારો છે",
    "pa": "ਅੱਜ ਅਸੀਂ ਪਿੰਡ ਦੇ ਜੀਵਨ ਬਾਰੇ ਇੱਕ ਛੋਟਾ ਲੇਖ ਲਿਖਦੇ ਹਾਂ ਅਤੇ ਇਹ ਚੰਗਾ ਹੈ",
    "ta": "இன்று நாங்கள் கிராம வாழ்க்கை பற்றி ஒரு சிறிய கட்டுரை எழுதுகிறோம்",
    "te": "ఈ రోజు మేము గ్రామ జీవితం గురించి ఒక చిన్న వ్యాసం రాస్తున్నాము",
    "kn": "ಇಂದು ನಾವು ಹಳ್ಳಿಯ ಜೀವನದ ಬಗ್ಗೆ ಒಂದು ಸಣ್ಣ ಲೇಖನ ಬರೆಯುತ್ತೇವೆ",
    "ml": "ഇന്ന് ഞങ്ങൾ ഗ്രാമജീവിതത്തെക്കുറിച്ച് ഒരു ചെറിയ ലേഖനം എഴുതുന്നു",
    "ur": "آج ہم گاؤں کی زندگی کے بارے میں ایک چھوٹا مضمون لکھ رہے ہیں اور یہ اچھا ہے",
    "fa": "امروز ما یک متن کوتاه درباره زندگی در روستا می نویسیم و این خوب است",
    "ar": "اليوم نكتب نصا قصيرا عن الحياة في القرية مع أصدقائنا وهذا جيد",
    "he": "היום אנחנו כותבים טקסט קצר על החיים בכפר עם החברים שלנו",
    "sw": "leo tunaandika maandishi mafupi kuhusu maisha ya kijijini pamoja na marafiki wetu",
    "vi": "hôm nay chúng tôi viết một bài ngắn về cuộc sống ở làng cùng với những người bạn",
    "th": "วันนี้เราเขียนข้อความสั้นเกี่ยวกับชีวิตในหมู่บ้านกับเพื่อนของเรา",
    "ko": "오늘 우리는 친구들과 함께 마을 생활에 대한 짧은 글을 씁니다",
    "ja": "今日は村の生活について短い文章を書きますそしてそれは良いことです",
    "zh-cn": "今天我们写一篇关于村庄生活的短文章这很好",
    "fi": "tänään me kirjoitamme lyhyen tekstin kylän elämästä yhdessä ystävien kanssa",
    "tr": "bugün arkadaşlarımızla birlikte köydeki yaşam hakkında kısa bir yazı yazıyoruz",
    "pl": "dzisiaj piszemy krótki tekst o życiu na wsi razem z naszymi przyjaciółmi",
    "nl": "vandaag schrijven wij een korte tekst over het leven in het dorp met onze vrienden",
    "sv": "idag skriver vi en kort text om livet i byn tillsammans med våra gamla vänner",
}
"""By the code that language detection uses."""
