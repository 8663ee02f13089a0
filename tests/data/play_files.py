"""Small files in exactly the layouts in which Shakespeare's plays are published; the words are made up."""

from __future__ import annotations

import zipfile
from pathlib import Path

NOTICE = """\
<<THIS ELECTRONIC VERSION OF THE COMPLETE WORKS IS COPYRIGHT
AND MAY BE DISTRIBUTED. SO LONG AS NOBODY IS CHARGED.>>
"""

PAGE_END = "  "  # spaces at the end of a line, as in the published file where a printed page ends

GUTENBERG = f"""\
Project Gutenberg's The Complete Works of William Shakespeare, by William Shakespeare

in the presentation of The Complete Works of William Shakespeare

{NOTICE}

1609

THE SONNETS

by William Shakespeare



                     1
  My rhyme is done. It has no act,
  My verse is long. It has no scene,
    And this is a couplet.

THE END



1603

ALLS FINE THAT ENDS FINE

by William Shakespeare


Dramatis Personae

  KING OF FRANCE
  A WIDOW OF FLORENCE. She never speaks
  HELENA, a gentlewoman



{NOTICE}



SCENE:
Paris; Florence


ACT I. SCENE 1.
Paris. The KING'S palace

Enter the KING OF FRANCE, HELENA, and others

  KING. Good morrow to you all. The sun is up,
    and so am I.                                 [Rises]
  HELENA. [To the KING]  My liege, I bring you news{PAGE_END}
    from the south,  [Shows a
    letter]  and bread.                             Exit
  SIR Toby. Bread!

                       Enter a PAGE

    Who is this?
  PAGE. Only me, sir.
 Exit
                                            Exeunt all but
                                                       KING
  SIR TOBY. A song, then!
{PAGE_END}
                      SONG.
        It was a baker and his loaf,
          With a hey, and a crust,
        That over the table did pass,
          In the baking time.

     The trumpet sounds. All dance.

   How well they sing!



{NOTICE}



ACT II. SCENE 1.
The same

  KING. Night falls.
  HELENA. It does.
THE END



1600

THE TRAGEDY OF A PRINCE

by William Shakespeare



ACT I. Scene I.
A platform.

  Ber. Who's there?
  Fran. Nay, answer me. Stand
     and unfold yourself.
  Ber. Long live the King!
  MRS. PAGE. I am from another play.

THE END


1593

THE COMEDY OF MISTAKES

by William Shakespeare


DRAMATIS PERSONAE

SOLINUS, a duke
DROMIO, a servant

{NOTICE}

ACT I. SCENE 1

A hall in the DUKE'S palace

Enter the DUKE and DROMIO

DUKE. Proceed, good Dromio,
  and be brief. I wait.
[Noise within]
  What noise is this?
DROMIO OF ROME. A cat, my lord.
<Exit the cat with
DROMIO and others
DUKE. I thought as much.

Enter DROMIO OF ROME

  Here he comes again.

{NOTICE}

ACT II. SCENE 1

  Nobody says this.
DROMIO OF ROME. Sir, it was
  a dog.
<Exeunt

THE END


1609

A LOVER'S LAMENT

by William Shakespeare

  From off a hill. A sound,
  Came to my ear. It went.

End of the Project Gutenberg EBook of The Complete Works of William
Shakespeare, by William Shakespeare
"""

OMELET = """\
<?xml version="1.0"?>
<!-- <!DOCTYPE PLAY SYSTEM "play.dtd"> -->
<PLAY>
<TITLE>The Tragedy of Omelet,
 Prince of Eggs</TITLE>
<PERSONAE><TITLE>Dramatis Personae</TITLE><PERSONA>OMELET</PERSONA></PERSONAE>
<ACT><TITLE>ACT I</TITLE>
<PROLOGUE><TITLE>PROLOGUE</TITLE><SPEECH><SPEAKER></SPEAKER><LINE>Nobody says this.</LINE></SPEECH></PROLOGUE>
<SCENE><TITLE>SCENE I.  A kitchen.</TITLE>
<STAGEDIR>Enter OMELET</STAGEDIR>
<SPEECH>
<SPEAKER>OMELET</SPEAKER>
<LINE>To fry, or not to fry:</LINE>
<STAGEDIR>Takes a pan</STAGEDIR>
<SUBHEAD>SONG.</SUBHEAD>
<LINE><STAGEDIR>Sings</STAGEDIR>that is  the question.</LINE>
</SPEECH>
<SPEECH><SPEAKER>Nurse</SPEAKER><LINE>Butter &amp; salt!</LINE></SPEECH>
<SPEECH><SPEAKER>SCRAMBLED</SPEAKER><SPEAKER>POACHED</SPEAKER><LINE>We both.</LINE></SPEECH>
<SPEECH><SPEAKER>POACHED</SPEAKER><SPEAKER>SCRAMBLED</SPEAKER><LINE>Again.</LINE></SPEECH>
<SPEECH><SPEAKER>NURSE</SPEAKER><LINE>Stir.</LINE><LINE><STAGEDIR>Exit</STAGEDIR></LINE></SPEECH>
<SPEECH><SPEAKER>Ghost</SPEAKER></SPEECH>
</SCENE></ACT></PLAY>
"""
BREAD = "<PLAY><TITLE>Bread</TITLE><SPEECH><SPEAKER>Nurse</SPEAKER><LINE>Knead it.</LINE></SPEECH></PLAY>"

DIALOGUE = """\
First Cook:
Before we proceed, hear me:
speak not.

ALL:
Speak, speak.


Ghost of Cook:

First COOK:
You are resolved?
"""


def write_zip(path: Path, contents: dict[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path
